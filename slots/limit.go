package slots

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/ratelimit"
)

// Max is the largest number of slots that a limit may have.
const Max = 10_000

// Limit is a named limit on how many callers hold a slot at once. [Define] returns it, usually
// once, for a package variable. It is identified by its name: two programs, or two releases, that
// define the same name share its slots. It has nothing to do with a limit of package ratelimit of
// the same name.
//
// A Limit is immutable and safe for concurrent use. The zero Limit is undefined: requests made from
// it are refused with an error that matches [ratelimit.ErrInvalid].
type Limit struct {
	name string
	n    int
}

// Define makes a limit from a name and the number of slots of each key. The name identifies its
// rows for ever: 1 to 255 bytes of UTF-8 without NUL. n is 1 to [Max]. A bad name or n is refused
// with a [*ratelimit.InvalidError] that says what would be right.
func Define(name string, n int) (Limit, error) {
	if err := checkText(name, "name", name, ratelimit.MaxNameBytes); err != nil {
		return Limit{}, err
	}
	if err := checkN(name, n); err != nil {
		return Limit{}, err
	}
	return Limit{name, n}, nil
}

// MustDefine is like [Define] but panics on an error. It is for package variables.
func MustDefine(name string, n int) Limit {
	l, err := Define(name, n)
	if err != nil {
		panic(err)
	}
	return l
}

// Name returns the name that the limit was defined with.
func (l Limit) Name() string { return l.name }

// For returns a request for one of the key's slots: those of a tenant, an account, a host. The key
// is 1 to 1024 bytes of UTF-8 without NUL; anything else is refused when the request is used.
func (l Limit) For(key string) Request {
	return Request{limit: l, keyed: true, key: key, n: l.n}
}

// Global returns a request for one of the slots of a limit without keys.
func (l Limit) Global() Request { return Request{limit: l, n: l.n} }

// Request is what one call asks of one limit: a slot of a key. It is a value.
type Request struct {
	limit Limit
	keyed bool
	key   string
	n     int
}

// Of uses another number of slots for this request than the limit's own, for example a customer's
// plan. With a larger number more slots are granted from the next call on. With a smaller one,
// slots that are held stay held, and no slot is granted until fewer than n are held in all. If
// concurrent calls have different numbers, each is decided with its own, and waits only for others
// of its own; but a slot that callers of one process hand on to each other, for up to 5 seconds, is
// not counted anew.
func (r Request) Of(n int) Request { r.n = n; return r }

// want is a valid request.
type want struct {
	place
	n int
}

// place is a limit and key.
type place struct{ name, key string }

func (r Request) resolve() (want, error) {
	w := want{place{r.limit.name, r.key}, r.n}
	if w.name == "" {
		return want{}, &ratelimit.InvalidError{Field: "limit", Value: "",
			Want: "one made by Define or MustDefine, not the zero Limit"}
	}
	if r.keyed {
		if err := checkText(w.name, "key", w.key, ratelimit.MaxKeyBytes); err != nil {
			return want{}, err
		}
	}
	return w, checkN(w.name, w.n)
}

// checkText checks a name or a key, which have to fit into an entry of the primary key's index.
func checkText(limit, field, text string, most int) error {
	why := where.Unfit(text, most)
	switch {
	case text == "" && field == "key":
		why = "it is empty; Limit.Global is for limits without keys"
	case text == "":
		why = "it is empty"
	case why == "":
		return nil
	}
	return &ratelimit.InvalidError{Limit: limit, Field: field, Value: where.Short(text),
		Want: fmt.Sprintf("1 to %d bytes of UTF-8 without NUL: %s", most, why)}
}

func checkN(name string, n int) error {
	if n < 1 || n > Max {
		return &ratelimit.InvalidError{Limit: name, Field: "n", Value: n,
			Want: fmt.Sprintf("a number of slots from 1 to %d", Max)}
	}
	return nil
}

// resolveAll checks the requests of one call, and sorts them: all callers ask in the same order.
func resolveAll(requests []Request) ([]want, error) {
	wants := make([]want, 0, len(requests))
	for _, r := range requests {
		w, err := r.resolve()
		if err != nil {
			return nil, err
		}
		wants = append(wants, w)
	}
	if len(wants) == 0 {
		return nil, &ratelimit.InvalidError{Field: "requests", Value: len(requests),
			Want: "at least one"}
	}
	slices.SortFunc(wants, func(a, b want) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key))
	})
	for i := range wants[1:] {
		if w := wants[i+1]; w.place == wants[i].place {
			return nil, &ratelimit.InvalidError{Limit: w.name, Field: "requests", Value: w.key,
				Want: "each key once in a call"}
		}
	}
	return wants, nil
}
