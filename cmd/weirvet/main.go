// Weirvet finds mistakes in code that uses Weir: limits that are asked but never obeyed, setters
// without effect, transactions that do more than they should when they run again, and limits that
// are defined twice.
//
//	go install github.com/weir-go/weir/cmd/weirvet@latest
//	go vet -vettool=$(which weirvet) ./...
//	weirvet ./...          # the same, without go vet
//	weirvet -fix ./...     # apply the changes that it suggests
//	weirvet help           # the checks, and what each looks for
//
// It exits with a status other than 0 if it reports anything. Each check has a flag of its name:
// -weirname runs that check alone, -weirname=false all others.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/weir-go/weir/cmd/weirvet/checks"
)

func main() { multichecker.Main(checks.Analyzers()...) }
