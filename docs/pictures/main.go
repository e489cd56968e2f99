// Pictures draws the diagrams of the guides: what a limit does over time, in which order things
// happen, where rows and locks are, and which way to call.
//
//	make pictures
//
// A test compares the files in docs/ with what is drawn here.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	docs := flag.String("docs", "docs", "the folder to write to")
	flag.Parse()
	if err := run(*docs); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(docs string) error {
	for name, draw := range pictures {
		svg, err := draw()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(docs, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pictures are the files in docs/, and what draws them.
var pictures = map[string]func() (string, error){
	"bucket.svg":   drawBucket,
	"sequence.svg": drawSequence,
	"rows.svg":     drawRows,
	"choose.svg":   drawTree,
}
