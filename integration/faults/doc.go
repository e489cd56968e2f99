// Package faults proves that no fault of the server, the network or the application breaks the
// books: there is nothing here but tests.
//
// An application takes tokens, writes down what it took and enqueues what it reserved, each time in
// one transaction. While it does, the server is killed or shut down, backends are terminated,
// connections are cut at COMMIT, processes die. After each round everything that is in the database
// is compared with itself and with what the callers were told. One test has these faults in turn
// over limits with shards, while these are paused and change their shards, and work is settled.
//
// Workers that call an API and settle what that has used are killed between its answer and COMMIT;
// there the books are also compared with what the API has answered.
//
// Workers of reserved jobs, with Weir's plugin and without, are killed and frozen while jobs become
// due. Counts from the database show that none starts early, none is lost, none is completed
// without having been worked, and none is worked twice, except where River has rescued it. In a
// soak the same faults hit River alone, for comparison.
//
// Clients that grant the turns of a fair line and work its jobs are killed and frozen, and the
// server is killed and shut down. Then each job has been done once, has paid once, and none has
// started before its tokens had come.
//
// A standby takes over from a primary that is killed. What callers were told before is then held
// against the books of the new primary, and what was held on the old one goes on.
//
// A run has a few rounds of each fault. WEIR_TEST_DURATION=10m gives each fault that much time
// instead. Without it the tests that take longest are left out: see rig.Large.
package faults
