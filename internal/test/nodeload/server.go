package nodeload

import "time"

// server is a node with its cores, or a row, which serves one statement at a time.
type server struct {
	size, busy int
	queue      []func()
	used       time.Duration // the time of all statements together that it served, until since
	since      time.Duration
}

func servers(n, size int) []*server {
	all := make([]*server, n)
	for i := range all {
		all[i] = &server{size: size}
	}
	return all
}

// take calls then as soon as the server is free for it.
func (s *server) take(now time.Duration, then func()) {
	if s.busy == s.size {
		s.queue = append(s.queue, then)
		return
	}
	s.count(now)
	s.busy++
	then()
}

// give ends what a take began, and lets the next one in.
func (s *server) give(now time.Duration) {
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		next()
		return
	}
	s.count(now)
	s.busy--
}

func (s *server) count(now time.Duration) {
	s.used += time.Duration(s.busy) * (now - s.since)
	s.since = now
}

// shares tells which share of the last d each server was used, and counts from 0 again.
func shares(servers []*server, now, d time.Duration) (all []float64) {
	for _, s := range servers {
		s.count(now)
		all = append(all, float64(s.used)/float64(s.size)/float64(d))
		s.used = 0
	}
	return all
}
