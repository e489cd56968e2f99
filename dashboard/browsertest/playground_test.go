package browsertest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// playground builds the program and runs it, until the test ends.
func playground(t *testing.T) (url string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "playground")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/playground")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(context.Background(), program, "-serve", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.Server(t).URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the playground ends with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "play at "))
}

func TestTheVisitorOfThePlaygroundSeesWhatHappens(t *testing.T) {
	t.Parallel()
	url, p := playground(t), browser(t) // which ends first
	const inside = `document.getElementById("picture").contentDocument`
	number := func(id string) string { return `Number(document.getElementById("` + id + `").textContent)` }
	choose := func(limit string) {
		t.Helper()
		p.until(`[...document.querySelectorAll("#kinds label")].some((l) => l.textContent === "` + limit + `")`)
		eval[int](p,
			`[...document.querySelectorAll("#kinds label")].find((l) => l.textContent === "`+limit+`").click() || 1`)
		p.until(inside + `.getElementById("keys-title").textContent === "` + limit + `" && ` +
			inside + `.getElementById("line") !== null`)
	}
	p.screen(1440, 860, "light")
	p.do(chromedp.Navigate(url))

	choose("modelTokens")
	p.click(`button[data-n="10"]`)
	// of 10: the playground has taken one when it started, which comes back in a second
	p.until(number("granted") + ` >= 9`)
	p.click(`button[data-n="10"]`)
	p.until(number("ahead") + ` > 0`)
	p.until(inside + `.getElementById("left-word").textContent === "Owed" && ` + inside +
		`.querySelectorAll("#job-list li").length > 0`)
	p.shoot("playground-reserved")

	choose("search")
	p.click(`button[data-n="100"]`)
	p.until(number("denied") + ` >= 78 && document.querySelector("#log .denied") !== null`)
	p.until(`Number(` + inside + `.getElementById("left").textContent) < 15 && ` + inside +
		`.querySelector("#bars .denied-bar") !== null`)
	p.click(`button[data-verb="pause"]`)
	p.until(inside + `.querySelector("#badges .paused") !== null && ` + inside +
		`.querySelector("#picture .halt") !== null`)
	p.click(`button[data-verb="resume"]`)
	p.until(inside + `.querySelector("#badges .paused") === null`)
	granted := eval[int](p, number("granted"))
	eval[int](p, `(document.getElementById("pace").value = 8, document.getElementById("pace").dispatchEvent(new Event("input")), 1)`)
	p.until(number("granted") + ` > ` + strconv.Itoa(granted) + ` && document.querySelectorAll("#log li").length > 6`)

	for _, size := range [][2]int64{{320, 700}, {768, 1024}, {1920, 1080}, {3840, 2160}} {
		for _, scheme := range []string{"light", "dark"} {
			p.screen(size[0], size[1], scheme)
			if got := eval[string](p, wide); got != "[]" {
				t.Errorf("at %d: wider than the screen: %s", size[0], got)
			}
			if got := eval[string](p, faint); got != "[]" {
				t.Errorf("at %d, %s: hard to read: %s", size[0], scheme, got)
			}
		}
	}
	p.shoot("playground")
}
