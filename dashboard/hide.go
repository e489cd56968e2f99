package dashboard

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// hider shows keys as eight digits, and gives pages a name to ask for each by, from which only it
// gets the key back: the key encrypted under a nonce that is made of the key (as RFC 5297 does), so
// that a key always has the same name.
type hider struct {
	mac   []byte
	block cipher.Block
}

func newHider(secret []byte) (*hider, error) {
	part := func(of string) []byte {
		m := hmac.New(sha256.New, secret)
		m.Write([]byte("weir dashboard " + of))
		return m.Sum(nil)
	}
	block, err := aes.NewCipher(part("encryption"))
	return &hider{part("authentication"), block}, err
}

func (h *hider) nonce(key string) []byte {
	m := hmac.New(sha256.New, h.mac)
	m.Write([]byte(key))
	return m.Sum(nil)
}

const padded = 32 // bytes: names tell the length of keys by so many

// name is what a page asks for the key by, and shown what people see.
func (h *hider) name(key string) (name, shown string) {
	nonce := h.nonce(key)
	text := append([]byte(key), 0) // keys have no NUL
	for len(text)%padded != 0 {
		text = append(text, 0)
	}
	cipher.NewCTR(h.block, nonce[:aes.BlockSize]).XORKeyStream(text, text)
	return base64.RawURLEncoding.EncodeToString(append(nonce[:aes.BlockSize:aes.BlockSize],
		text...)), hex.EncodeToString(nonce[16:20])
}

// key is that of a name; ok is false if the name is none that was given out.
func (h *hider) key(name string) (key string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil || len(b) < aes.BlockSize {
		return "", false
	}
	nonce, text := b[:aes.BlockSize], b[aes.BlockSize:]
	cipher.NewCTR(h.block, nonce).XORKeyStream(text, text)
	for len(text) > 0 && text[len(text)-1] == 0 {
		text = text[:len(text)-1]
	}
	key = string(text)
	return key, hmac.Equal(h.nonce(key)[:aes.BlockSize], nonce)
}
