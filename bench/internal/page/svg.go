package page

import "strings"

// fonts have the widths that the pictures are laid out by. Most machines have one of them, but not
// the same.
const fonts = `Liberation Serif,Times New Roman,Tinos,Nimbus Roman,Times,serif`

// SVG names, in a picture that gonum has drawn, the fonts that it may be shown in.
func SVG(picture string) string {
	return strings.ReplaceAll(picture, "font-family:Liberation Serif;", "font-family:"+fonts+";")
}
