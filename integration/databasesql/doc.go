// Package databasesql tests package scheduler with River's driver for database/sql. It is a module
// of its own, as only these tests want that driver.
package databasesql
