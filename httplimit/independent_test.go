package httplimit_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
)

// parserOfNPM reads Lists by the structured-headers of npm: a line of JSON for each.
const parserOfNPM = `
import { parseList } from 'structured-headers';
import { createInterface } from 'node:readline';
for await (const line of createInterface({ input: process.stdin })) {
	console.log(JSON.stringify(parseList(JSON.parse(line)).map(([v, p]) => [v, Object.fromEntries(p)])));
}`

// A parser of somebody else's, in another language, reads from the fields what our own reads.
func TestTheFieldsAreReadByAnotherParser(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs("../.bin/sfv")
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := filepath.Glob(dir + "/node_modules/structured-headers/package.json"); len(found) == 0 {
		t.Skip("no structured-headers in .bin/sfv: make sfv gets it, where there are Node.js and npm")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on PATH")
	}
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test
	names := []string{"perUser", `quo"te`, `back\slash`, "per cent %", "über", "a;b,c=1", " ", "\x7f"}
	var fields []string
	for range 500 {
		var outcomes []ratelimit.Outcome
		for range 1 + random.IntN(3) {
			name := names[random.IntN(len(names))] + string(rune('a'+random.IntN(26)))
			o := bucket(name, random.Float64()*1e3-10, 1+random.Float64()*1e17,
				1+random.Float64()*100, time.Duration(1+random.Int64N(1e15)))
			if random.IntN(2) == 0 {
				o.WindowEnds = at.Add(time.Duration(random.Int64N(1e14)))
			}
			if random.IntN(3) == 0 {
				o = denied(o, time.Duration(1+random.Int64N(1e14)))
			}
			outcomes = append(outcomes, o)
		}
		h := told(httplimit.Draft10, result(outcomes...))
		for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
			fields = append(fields, strings.Join(h.Values(http.CanonicalHeaderKey(name)), ", "))
		}
	}
	var in, out, complaints bytes.Buffer
	for _, f := range fields {
		if err := json.NewEncoder(&in).Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", parserOfNPM)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, &in, &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, complaints.String())
	}
	read := json.NewDecoder(&out)
	for _, f := range fields {
		var theirs [][2]any
		if err := read.Decode(&theirs); err != nil {
			t.Fatalf("%q: %v", f, err)
		}
		ours, err := parseList([]string{f})
		if err != nil || len(ours) == 0 || len(ours) != len(theirs) {
			t.Fatalf("%q is %v, %v, and by another parser %v", f, ours, err, theirs)
		}
		for i, m := range ours {
			params := map[string]any{}
			for k, v := range m.params {
				params[k] = float64(v)
			}
			if m.name != theirs[i][0] || !reflect.DeepEqual(params, theirs[i][1]) {
				t.Errorf("%q has %v, and by another parser %v", f, m, theirs[i])
			}
		}
	}
}
