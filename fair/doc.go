// Package fair shares one limit among tenants who together want more than there is. Each gets what
// it wants, but no more than an equal share. Tokens that some do not want go to the others, so no
// capacity is wasted, and a lone tenant gets all of it.
//
//	var Model = fair.MustDefine("model", ratelimit.TokenBucket{Rate: 60_000, Period: time.Minute}, fair.Config{})
//
//	res, err := Model.RateLimit(ctx, limiter.Autocommit(pool), fair.Tenant{Key: org}, 1200)
//
// # Which callers it is for
//
// It is for callers that have no job, such as HTTP handlers: they get their answer at once, in one
// round trip, and need no queue and no process that hands out turns. Jobs that can wait belong in a
// fair line of package scheduler, which fits them better: it grants them one by one, whatever their
// counts and whatever the size of the bucket. Give handlers and jobs separate limits.
//
// # How it works
//
// Besides the limit itself, a second row counts what each tenant has used in the current window of
// time. One call takes from both rows or from neither, in the caller's transaction if there is one.
// The more a tenant has used of the window's flow, the more must be left in the bucket after its
// next take (see [ratelimit.Request.Leave]). If tenants want too much, the bucket runs down to the
// level at which those that have used most are denied. So the others get their turn, until all have
// used the same. This is max-min fairness without a queue, without a leader, and without knowing
// the other tenants. It cannot reserve: a call is granted now or denied. A place in a limit's line
// is given for good, in the order of the calls, so a tenant with many calls would have all of the
// next ones. For work that may wait, package scheduler has fair lines, whose turns are given one by
// one.
//
// With [ratelimit.Shards] among Config.Options, a call that must leave tokens first reads all
// shards, in a round trip of its own, and leaves each shard its part.
//
// # How exact it is
//
// The levels of tenants are a few tokens apart, so the bucket has to be large enough to tell them
// apart: its capacity should be ten, or better twenty, times the usual count for each competing
// tenant. A process knows a tenant's use, over all processes, from its own last call for that
// tenant. Its first call for a tenant is granted as if the tenant had used nothing.
//
// A fixed window has all of its tokens at its start, before all tenants have come, so it is shared
// less evenly.
package fair
