package shard

import "math"

// Split divides x among n shards: the first gets first, each other one each. The parts differ by
// less than n units in the last place of x, and their sum, made in any order, is x exactly. n is at
// least 1.
func Split(x float64, n int) (first, each float64) {
	if n == 1 || x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x, x
	}
	// Use whole multiples of the unit in the last place of x. x is less than 2^53 of them, so any
	// sum of parts is exact.
	frac, exp := math.Frexp(x)
	units := math.Trunc(math.Ldexp(frac, 53) / float64(n))
	each = math.Ldexp(units, exp-53)
	return x - each*float64(n-1), each
}
