package both // want package:`defines "messages \(shadow\)", "messages", "slots", "uploads", "uploads"`

import (
	"example.com/names/one"
	"example.com/names/sibling" // want `the limit "uploads" is defined twice, and both share their rows: in example.com/names/one, one.go:15, and in example.com/names/sibling, sibling.go:9`
)

var Both = []any{one.Messages, sibling.Uploads}
