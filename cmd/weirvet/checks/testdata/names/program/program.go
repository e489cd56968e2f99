// Program imports what has been reported where it came together.
package main

import (
	"example.com/names/both"
	"example.com/names/one"
	"example.com/names/sibling"
)

func main() { _ = []any{both.Both, one.Messages, sibling.Uploads} }
