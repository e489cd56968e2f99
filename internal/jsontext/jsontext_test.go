package jsontext

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWhatIsWrittenReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "text") {
			s = rapid.String().Draw(t, "string")
		}
		var got string
		if err := json.Unmarshal(String(nil, s), &got); err != nil ||
			got != strings.ToValidUTF8(onePerByte(s), "\uFFFD") {
			t.Errorf("%q reads back as %q: %v", s, got, err)
		}
		f := rapid.Float64().Filter(func(f float64) bool {
			return !math.IsInf(f, 0) && !math.IsNaN(f)
		}).Draw(t, "float")
		var back float64
		if err := json.Unmarshal(Float(nil, f), &back); err != nil || back != f {
			t.Errorf("%v reads back as %v: %v", f, back, err)
		}
	})
}

// onePerByte replaces each byte that is no UTF-8, where strings.ToValidUTF8 replaces runs of them.
func onePerByte(s string) string { return string([]rune(s)) }

func TestEscapes(t *testing.T) {
	t.Parallel()
	const in, want = "a\"b\\c\n\x00\u2028é😀</script>", `"a\"b\\c\u000a\u0000` + "\u2028é😀</script>\""
	if got := string(String([]byte("x"), in)); got != "x"+want {
		t.Errorf("%s, want %s", got, want)
	}
}
