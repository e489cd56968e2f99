package names

import (
	"fmt"
	"strconv"
	"strings"
)

// A node is one of a parse tree as pg_proc.prosqlbody writes it: {NAME :field value :field value}.
type node struct {
	name   string
	fields map[string]any // a word, a *node, or a []any
}

// parse reads a tree.
func parse(text string) (any, error) {
	r := reader{text: text}
	v := r.value(r.word())
	if r.text = strings.TrimSpace(r.text); r.text != "" {
		return nil, fmt.Errorf("after the tree there is %.80q", r.text)
	}
	return v, nil
}

type reader struct{ text string }

// word cuts off the next word, or one of the signs of a tree. It keeps backslashes.
func (r *reader) word() string {
	r.text = strings.TrimLeft(r.text, " \n\t")
	end := 0
	for end < len(r.text) && !strings.ContainsRune(" \n\t(){}", rune(r.text[end])) {
		if r.text[end] == '\\' {
			end++
		}
		end++
	}
	end = min(max(end, 1), len(r.text))
	w := r.text[:end]
	r.text = r.text[end:]
	return w
}

func (r *reader) value(w string) any {
	switch w {
	case "(":
		var list []any
		for w := r.word(); w != ")" && w != ""; w = r.word() {
			list = append(list, r.value(w))
		}
		return list
	case "{":
		n := &node{name: r.word(), fields: map[string]any{}}
		field := ""
		for w := r.word(); w != "}" && w != ""; w = r.word() {
			if strings.HasPrefix(w, ":") {
				field = w[1:]
			} else if v := r.value(w); n.fields[field] == nil { // the first of the words of a datum
				n.fields[field] = v
			}
		}
		return n
	default:
		return w
	}
}

// nodes calls fn for each node of a tree.
func nodes(tree any, fn func(*node)) {
	switch v := tree.(type) {
	case []any:
		for _, each := range v {
			nodes(each, fn)
		}
	case *node:
		fn(v)
		for _, each := range v.fields {
			nodes(each, fn)
		}
	}
}

func (n *node) oid(field string) uint32 {
	word, _ := n.fields[field].(string)
	oid, _ := strconv.ParseUint(word, 10, 32)
	return uint32(oid)
}

// list is a list of nodes, without the TARGETENTRYs that aggregates wrap them in.
func (n *node) list(field string) []*node {
	var all []*node
	values, _ := n.fields[field].([]any)
	for _, v := range values {
		if each, ok := v.(*node); ok {
			if expr, ok := each.fields["expr"].(*node); ok && each.name == "TARGETENTRY" {
				each = expr
			}
			all = append(all, each)
		}
	}
	return all
}

const boolean = 16 // its oid

// written is the expression that a statement has: without the casts that Postgres adds to it.
func (n *node) written() *node {
	const implicit = "2" // COERCE_IMPLICIT_CAST
	for {
		inner, ok := n.fields["arg"].(*node)
		switch {
		case ok && (n.fields["relabelformat"] == implicit || n.fields["coerceformat"] == implicit):
			n = inner
		case n.name == "FUNCEXPR" && n.fields["funcformat"] == implicit:
			n = n.list("args")[0]
		default:
			return n
		}
	}
}

// typ is the type of an expression, 0 if it is not known. It goes by the names of fields, which are
// the same in all releases of Postgres. Those of some nodes are not.
func (n *node) typ() uint32 {
	switch n.name {
	case "SUBLINK":
		const exists, expr = "0", "4"
		query, _ := n.fields["subselect"].(*node)
		if columns := query.list("targetList"); n.fields["subLinkType"] == expr &&
			len(columns) > 0 {
			return columns[0].typ()
		}
		return boolean
	case "COLLATE", "COLLATEEXPR":
		of, _ := n.fields["arg"].(*node)
		return of.typ()
	case "SCALARARRAYOPEXPR", "BOOLEXPR", "NULLTEST", "BOOLEANTEST", "ROWCOMPARE", "ROWCOMPAREEXPR":
		return boolean
	}
	for _, field := range []string{
		"opresulttype", "funcresulttype", "consttype", "paramtype", "vartype", "aggtype",
		"coalescetype",
		"minmaxtype", "casetype", "refrestype", "resulttype", "array_typeid", "row_typeid",
		"typeId",
		"wintype", "type",
	} {
		if oid := n.oid(field); oid != 0 {
			return oid
		}
	}
	return 0
}
