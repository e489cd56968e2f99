// Package citus tests what holds on a Citus cluster only: tokens and tables of the coordinator are
// kept or lost together, whichever node is killed when. The tests of the other packages run there
// as well: see make test/citus.
package citus
