module github.com/weir-go/weir/internal/release

go 1.25.0

require (
	golang.org/x/exp v0.0.0-20250620022241-b7579e27df2b
	golang.org/x/mod v0.35.0
	golang.org/x/tools v0.44.0
)

require (
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/tools/go/packages/packagestest v0.1.1-deprecated // indirect
)
