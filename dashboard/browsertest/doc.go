// Package browsertest looks at the dashboard in a real browser: Chromium, as Debian has it. It is a
// module of its own, as only its tests want what drives one.
package browsertest
