// Package rpclimit stands in for that of Weir, so that weirvet requires neither gRPC nor Connect.
package rpclimit

type Ask func()

func (a Ask) Only(procedures ...string) Ask { return a }
