package slots

import (
	"testing"

	"github.com/weir-go/weir/internal/test/names"
	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestStatementsUseOnlyNamesOfPostgres(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := newStatements(pool.Config().ConnConfig.RuntimeParams["search_path"])
	names.Check(t, pool, names.Statements{
		Dir: ".",
		Texts: []string{s.acquire, s.acquireBound, s.find, s.take, s.left, s.tidy, s.claim, s.renewFree, s.renew.several, s.renew.one,
			s.release.several, s.release.one, s.count.several, s.count.one},
	})
}
