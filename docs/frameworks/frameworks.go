// Package frameworks limits the routes of chi, echo and gin by the middleware of httplimit.
package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
)

// Middleware is what httplimit.Guard.Limit makes.
type Middleware = func(http.Handler) http.Handler

// Chi takes the middleware as it is.
func Chi(perAddress Middleware, search http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.Use(perAddress)
	router.Get("/search", search)
	return router
}

// Echo wraps it.
func Echo(perAddress Middleware, search http.HandlerFunc) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(perAddress))
	e.GET("/search", echo.WrapHandler(search))
	return e
}

// Gin needs an adapter.
func Gin(perAddress Middleware, search http.HandlerFunc) http.Handler {
	router := gin.New()
	router.Use(ginLimit(perAddress))
	router.GET("/search", gin.WrapF(search))
	return router
}

// ginLimit runs the rest of gin's chain if the middleware lets the request through.
func ginLimit(limit Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r // its context has the result
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
