// Package shed keeps a busy server useful: it bounds how many requests are worked on at once, and
// refuses the least important ones first.
//
//	s, err := shed.New(shed.Config{Limit: 64})
//	if err != nil {
//		log.Fatal(err)
//	}
//	mux.Handle("POST /pay", s.Route(shed.Critical)(pay))
//	mux.Handle("GET /search", s.Route(shed.Normal)(search))
//	mux.Handle("POST /export", s.Route(shed.Background)(export))
//
// One Shedder counts the requests of a process, so all routes that compete for the same workers,
// connections or processors share it. It needs no database. A rate limit says how often a client
// may call: see package httplimit of the main module. A Shedder protects the server from all
// clients together.
//
// # Classes
//
// The server decides how important a request is: by its route, with [Shedder.Route], or with the
// function [Config.Class] in one middleware around everything, [Shedder.Handler]. Do not read the
// class from a header field that clients send, as they would all be critical.
//
// The use of a Shedder is the number of requests being worked on, divided by [Config.Limit]. Each
// class has a [Ramp]. Below Ramp.From every request of the class is admitted. From there to Ramp.To
// the share of refused requests rises evenly from none to all of them. So a class is refused more
// and more as the use rises, and comes back the same way as it falls. By default Background is
// refused from a use of 0.4 to 0.7, and Normal from 0.7 to 0.95. Critical requests may use the
// whole limit.
//
// # Queue
//
// A request that would be refused waits for up to [Config.MaxWait] in a queue of [Config.Queue]
// places. Whenever a request ends, the most important waiting request that may run leaves the
// queue. Within a class that is the one that came first. If the queue is full, a request takes the
// place of the newest one of a lower class, which is refused.
//
// A refused request gets 503 with a Retry-After that is spread out, so that clients do not come
// back all at once.
//
// # Streams
//
// A long-lived response would hold a permit for as long as it lasts. Name such routes in
// [Config.Exclude]; they are neither counted nor refused. A connection that is upgraded, as
// WebSockets are, needs a permit until its handler takes over the connection with Hijack, which
// frees the permit. The Upgrade field alone excludes nothing, because any client can send it.
//
// # Trying it out
//
// With [Config.Shadow] the Shedder decides and calls [Config.Observer], but refuses and delays
// nothing.
package shed
