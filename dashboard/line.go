package dashboard

import "context"

const mostTenants = 100 // of a line

// wireLine is the fair line of a key as the page gets it.
type wireLine struct {
	Line      []wireTenant `json:"line"` // the next first; null if nobody tells
	LineError string       `json:"lineError,omitempty"`
	LineMore  bool         `json:"lineMore,omitempty"` // waits than this
}

type wireTenant struct {
	Tenant     string  `json:"tenant"` // as it is shown
	Jobs       int     `json:"jobs"`
	Turn       int     `json:"turn"`
	Charged    float64 `json:"charged"`
	NextID     int64   `json:"nextID"`
	NextKind   string  `json:"nextKind"`
	PassedOver string  `json:"passedOver,omitempty"` // because of this limit
}

func (d *Dashboard) line(ctx context.Context, a asked) (l wireLine) {
	if d.inLine == nil {
		return l
	}
	tenants, more, err := d.inLine(ctx, a.limit, a.key)
	if err != nil { // the balance is there all the same
		l.LineError = "the tables of the line cannot be read" + d.because(err)
		return l
	}
	l.LineMore = more || len(tenants) > mostTenants
	l.Line = make([]wireTenant, min(len(tenants), mostTenants))
	for i := range l.Line {
		t := &tenants[i]
		l.Line[i] = wireTenant{d.name(t.Key).Key, t.Jobs, t.Turn, t.Charged, t.Next.ID, t.Next.Kind,
			t.PassedOver}
	}
	return l
}
