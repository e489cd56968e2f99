// Package orms takes from limits in transactions that sqlc, GORM, Bun and Ent write in.
package orms

import (
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Uploads is how many files a user may store in a day.
var Uploads = ratelimit.MustDefine("uploads", ratelimit.FixedWindow{Rate: 2, Period: 24 * time.Hour})
