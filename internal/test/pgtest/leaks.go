package pgtest

import (
	"time"

	"go.uber.org/goleak"
)

// leaks returns an error if goroutines stay: goleak itself waits for only half a second.
func leaks(known []goleak.Option) (err error) {
	err = goleak.Find(known...)
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(known...)
	}
	return err
}
