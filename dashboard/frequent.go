package dashboard

import (
	"cmp"
	"slices"
	"strings"
)

const mostFrequent = 20

// often is a key and how often it came: no less than Times less Over, and no more than Times.
type often struct {
	key         string
	times, over uint64
}

// frequent has the keys that come most often, of any number, in the space of twenty: a new one
// takes the place of the least, and counts as often, so that whatever comes more than a twentieth
// of the time is there. Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and
// Top-k Elements in Data Streams", 2005.
type frequent []often

func (f *frequent) add(key string) {
	least := 0
	for i := range *f {
		o := &(*f)[i]
		if o.key == key {
			o.times++
			return
		}
		if o.times < (*f)[least].times {
			least = i
		}
	}
	key = strings.Clone(key) // which may be a small part of something large
	if len(*f) < mostFrequent {
		*f = append(*f, often{key, 1, 0})
		return
	}
	o := &(*f)[least]
	*o = often{key, o.times + 1, o.times}
}

// top lists the n that come most often in all of fs, by the count that is certain.
func top(n int, fs ...frequent) []often {
	var all []often
	for _, f := range fs {
		for _, o := range f {
			if i := slices.IndexFunc(all, func(a often) bool { return a.key == o.key }); i >= 0 {
				all[i].times += o.times
				all[i].over += o.over
			} else {
				all = append(all, o)
			}
		}
	}
	all = slices.DeleteFunc(all, func(o often) bool { return o.over*2 > o.times }) // mostly others
	slices.SortFunc(all, func(a, b often) int {
		return cmp.Or(cmp.Compare(b.times-b.over, a.times-a.over), cmp.Compare(a.key, b.key))
	})
	return all[:min(n, len(all))]
}
