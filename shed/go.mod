module github.com/weir-go/weir/shed

go 1.25.0
