package estimate_test

import (
	"errors"
	"math"
	"testing"

	"github.com/weir-go/weir/estimate"
	"github.com/weir-go/weir/ratelimit"
)

func TestZeroConfigHasTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{})
	for n := range 9 {
		q.Observe(key, float64(n+1))
		wantNext(t, q, guess, "below ten observations")
	}
	q.Observe(key, 10)
	wantNext(t, q, 9, "after ten")
	for n := 10; n < 200; n++ {
		q.Observe(key, float64(n+1))
	}
	wantNext(t, q, 190, "after two hundred, of which the latest hundred count")

	short := quantiles(t, estimate.Config{Window: 3})
	times(short, 2, 5)
	wantNext(t, short, guess, "with a part of a window of less than ten")
	times(short, 1, 5)
	wantNext(t, short, 5, "with all of it")
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg   estimate.Config
		field string // "" if it is good
	}{
		{estimate.Config{Quantile: 1}, ""},
		{estimate.Config{Quantile: math.SmallestNonzeroFloat64}, ""},
		{estimate.Config{Quantile: math.Nextafter(1, 2)}, "Quantile"},
		{estimate.Config{Quantile: 90}, "Quantile"},
		{estimate.Config{Quantile: -0.1}, "Quantile"},
		{estimate.Config{Quantile: math.NaN()}, "Quantile"},
		{estimate.Config{Quantile: math.Inf(1)}, "Quantile"},
		{estimate.Config{Window: 1}, ""},
		{estimate.Config{Window: 10_000}, ""},
		{estimate.Config{Window: 10_001}, "Window"},
		{estimate.Config{Window: math.MaxInt}, "Window"},
		{estimate.Config{Window: -1}, "Window"},
		{estimate.Config{MinObservations: 100}, ""},
		{estimate.Config{MinObservations: 101}, "MinObservations"},
		{estimate.Config{MinObservations: -1}, "MinObservations"},
		{estimate.Config{Window: 5, MinObservations: 6}, "MinObservations"},
		{estimate.Config{MaxKeys: math.MaxInt}, ""},
		{estimate.Config{MaxKeys: -1}, "MaxKeys"},
	} {
		q, err := estimate.New(c.cfg)
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.cfg, err)
			}
			continue
		}
		var invalid *ratelimit.InvalidError
		if q != nil || !errors.Is(err, ratelimit.ErrInvalid) || !errors.As(err, &invalid) ||
			invalid.Field != "estimate.Config."+c.field {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	const want = "ratelimit: estimate.Config.Quantile is 90: want a share above 0 and at most 1, or 0 for the default of 0.9"
	if _, err := estimate.New(estimate.Config{Quantile: 90}); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
