// Package model compares the library on a real Postgres with models of it: files machine_* run any
// operations in any order beside a model in memory, files linear_* check that histories of callers
// at once could have happened one by one. There is nothing here but tests.
package model
