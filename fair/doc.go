// Package fair shares one limit among tenants who together want more than there is: each gets what it wants, as long as that is no more
// than the others get, and nobody's appetite is another's hunger. Whatever is not wanted by some goes to the others, so that all that
// flows is used; a tenant who is alone has all of it.
//
//	var Model = fair.MustDefine("model", ratelimit.TokenBucket{Rate: 60_000, Period: time.Minute}, fair.Config{})
//
//	res, err := Model.RateLimit(ctx, limiter.Autocommit(pool), fair.Tenant{Key: org}, 1200)
//
// # How it works
//
// Beside the limit itself there is a count of what each tenant has used of it in the present window of time: two rows in one call, both
// taken or none, in the caller's transaction if there is one. The more of the window's flow a tenant has used already, the more must
// be left in the bucket after its next take (see [ratelimit.Request.Leave]). Where tenants want too much the bucket stands at the
// level at which those who have used most are refused, so that it is the others' turn; and they come level with each other. This is
// max-min fairness without a queue, without a leader, and without knowing who else there is.
//
// # How exact it is
//
// The levels of tenants are a few tokens apart, so the bucket has to be large enough to tell them apart: its capacity should be ten
// times the common count for each tenant that competes, and better twenty. What a process knows of a tenant's use is what its last call
// was told, by whatever process that was granted; its first call for a tenant knows nothing, and is granted as if none had been used.
//
// A limit that is a fixed window has all of its tokens at its start, when nobody knows yet who will come: it is shared less evenly.
package fair
