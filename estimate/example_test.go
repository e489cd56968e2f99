package estimate_test

import (
	"fmt"
	"log"

	"github.com/weir-go/weir/estimate"
)

func Example() {
	usage, err := estimate.New(estimate.Config{Quantile: 0.9})
	if err != nil {
		log.Fatal(err)
	}
	const key = "gpt-4o/summarize"
	fmt.Println("at first:", usage.Next(key, 1200))

	for _, tokens := range []float64{310, 290, 350, 305, 280, 900, 330, 300, 295, 320} {
		usage.Observe(key, tokens)
	}
	fmt.Println("after ten calls:", usage.Next(key, 1200))
	fmt.Println("of another key:", usage.Next("gpt-4o/translate", 1200))
	// Output:
	// at first: 1200
	// after ten calls: 350
	// of another key: 1200
}
