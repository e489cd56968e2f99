// Package schema creates and upgrades Weir's tables.
package schema
