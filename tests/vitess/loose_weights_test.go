// Writes the tables of relay/vitess/loose.py and the vectors of its tests from Vitess' own collation tables.
//
// It is not built with the relay. Copy it to go/mysql/collations/vindex/collate of Vitess v0.23.0, and run there:
//
//	GOTOOLCHAIN=go1.25.3 go test -run LooseWeights . -args FOLDER
//
// It writes loose_vectors.json and weights.txt to FOLDER. `xz -9e` makes relay/vitess/loose_weights.xz of weights.txt.
package collate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"vitess.io/vitess/go/mysql/collations/vindex/unicode/norm"
)

// recorder is a hash.Hash whose sum is what was written: the primary weights of a string.
type recorder struct{ written []byte }

func (r *recorder) Write(p []byte) (int, error) {
	r.written = append(r.written, p...)
	return len(p), nil
}
func (r *recorder) Sum(b []byte) []byte { return append(b, r.written...) }
func (r *recorder) Reset()              { r.written = r.written[:0] }
func (r *recorder) Size() int           { return 0 }
func (r *recorder) BlockSize() int      { return 1 }

// unsure tells the runes that are not assigned now and may be ideographs one day: what weighs them is the unicode
// package of the Go that built Vitess.
func unsure(r rune) bool {
	if unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co) {
		return false
	}
	return r >= 0x2E80 && r < 0xA4D0 || r >= 0xF900 && r < 0xFB00 || r >= 0x16FE0 && r < 0x18E00 ||
		r >= 0x1AFF0 && r < 0x1B300 || r >= 0x20000 && r < 0x40000
}

func ranges(out *strings.Builder, name string, in func(rune) bool) {
	first := rune(-1)
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if in(r) && first < 0 {
			first = r
		} else if !in(r) && first >= 0 {
			fmt.Fprintf(out, "%s %x %x\n", name, first, r-1)
			first = -1
		}
	}
}

var table = getTable(tableIndex{0x15, 0x0})

// lookup returns the raw entry of a rune, as Trie.lookup does.
func lookup(r rune) uint32 {
	s := []byte(string(r))
	t := table.Index
	if len(s) == 1 {
		return t.Values0[s[0]]
	}
	i := t.Index0[s[0]]
	for _, c := range s[1 : len(s)-1] {
		i = t.Index[int(i)<<6+int(c)]
	}
	return t.Values[int(i)<<6+int(s[len(s)-1])]
}

func elements(s string) string {
	var out []string
	for b := []byte(s); len(b) > 0; {
		elems, n := table.AppendNext(nil, b)
		for _, e := range elems {
			out = append(out, fmt.Sprintf("%x.%x", e.Primary(), e.CCC()))
		}
		b = b[n:]
	}
	return strings.Join(out, " ")
}

// suffixes yields what may follow the rune of a contraction.
func suffixes(index, n int, prefix []byte, found func(string)) {
	states := table.ContractTries[index:]
	for i := 0; i < n; i++ {
		e := states[i]
		if e.N == 0 {
			for c := int(e.L); c <= max(int(e.H), int(e.L)); c++ {
				found(string(append(append([]byte{}, prefix...), byte(c))))
			}
			continue
		}
		here := append(append([]byte{}, prefix...), e.L)
		if e.I != 0xFF {
			found(string(here))
		}
		suffixes(index+int(e.H)+n, int(e.N), here, found)
	}
}

func TestLooseWeights(t *testing.T) {
	folder := os.Args[len(os.Args)-1]
	var out strings.Builder
	var known []rune
	var starters []string
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xD800 && r <= 0xDFFF {
			continue
		}
		p := norm.NFD.Properties([]byte(string(r)))
		if p.LeadCCC() != 0 || p.TrailCCC() != 0 {
			fmt.Fprintf(&out, "ccc %x %x %x\n", r, p.LeadCCC(), p.TrailCCC())
		}
		raw := lookup(r)
		if raw == 0 {
			continue // implicit, or Hangul
		}
		known = append(known, r)
		fmt.Fprintf(&out, "one %x %s\n", r, elements(string(r)))
		if raw > 0xAFFFFFFF && raw <= 0xDFFFFFFF {
			suffixes(int(raw>>4&0xFFF), int(raw&0xF), nil, func(s string) {
				if _, n := table.AppendNext(nil, []byte(string(r)+s)); n != len(string(r)+s) {
					t.Errorf("%x %q is not a contraction", r, s)
				}
				fmt.Fprintf(&out, "many %x %s\n", []rune(string(r)+s), elements(string(r)+s))
				starters = append(starters, string(r)+s)
			})
		}
	}
	ranges(&out, "ideographic", func(r rune) bool { return unicode.Is(unicode.Ideographic, r) })
	ranges(&out, "unsure", unsure)
	write(t, filepath.Join(folder, "weights.txt"), []byte(out.String()))

	hasher := New(&recorder{})
	key := func(s string) []byte { return append([]byte{}, hasher.Hash([]byte(s))...) }
	vectors := struct {
		Unicode string
		Blocks  map[string]string
		Strings [][2]string
	}{Unicode: unicode.Version, Blocks: map[string]string{}}
	// Each code point by itself, 4096 of them in a digest.
	for block := rune(0); block <= unicode.MaxRune; block += 0x1000 {
		digest := sha256.New()
		for r := block; r < block+0x1000; r++ {
			if (r < 0xD800 || r > 0xDFFF) && !unsure(r) {
				k := key(string(r))
				digest.Write(append([]byte{byte(len(k) >> 8), byte(len(k))}, k...))
			}
		}
		vectors.Blocks[fmt.Sprintf("%x", block)] = hex.EncodeToString(digest.Sum(nil))[:32]
	}
	rng := rand.New(rand.NewSource(17))
	var marks []rune
	for _, r := range known {
		if unicode.Is(unicode.M, r) {
			marks = append(marks, r)
		}
	}
	scripts := []string{"Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "Devanagari", "Bengali", "Tamil", "Thai", "Lao",
		"Tibetan", "Myanmar", "Khmer", "Sinhala", "Hiragana", "Katakana", "Hangul", "Han", "Ethiopic", "Armenian"}
	var letters = map[string][]rune{}
	for _, name := range scripts {
		for r := rune(0); r <= 0x2FFFF; r++ {
			if unicode.Is(unicode.Scripts[name], r) {
				letters[name] = append(letters[name], r)
			}
		}
	}
	for n := 0; n < 1500; n++ {
		name := scripts[rng.Intn(len(scripts))]
		var s string
		for k := rng.Intn(12); k >= 0; k-- {
			switch x := rng.Intn(20); {
			case x < 9:
				s += string(letters[name][rng.Intn(len(letters[name]))])
			case x < 11:
				s += string(rune(0x20 + rng.Intn(0x5F)))
			case x < 13:
				s += starters[rng.Intn(len(starters))]
			case x < 16:
				s += string(marks[rng.Intn(len(marks))])
			case x < 17:
				// A contraction with marks between its parts.
				c := []rune(starters[rng.Intn(len(starters))])
				for _, r := range c {
					s += string(r)
					for rng.Intn(2) == 0 {
						s += string(marks[rng.Intn(len(marks))])
					}
				}
			case x < 18:
				s += string(norm.NFD.Append(nil, []byte(string(known[rng.Intn(len(known))]))...))
			default:
				s += string(known[rng.Intn(len(known))])
			}
		}
		vectors.Strings = append(vectors.Strings, [2]string{s, hex.EncodeToString(key(s))})
	}
	text, err := json.MarshalIndent(vectors, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "loose_vectors.json"), append(text, '\n'))
}

func write(t *testing.T, path string, text []byte) {
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
