// Reads a journal (JSON lines, see testkit/src/history/journal.rs) and checks with porcupine, lock by
// lock, that it is the history of a reentrant fenced mutex.
//
// Exit code 0: it is. 1: it is not. 2: the journal cannot be read, or there was not enough time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// One line of a journal.
type entry struct {
	At     int64    `json:"at"`
	Claim  uint64   `json:"claim"`
	What   string   `json:"what"`
	Locks  []string `json:"locks"`
	Shared bool     `json:"shared"`
	Fence  uint64   `json:"fence"`
	Until  int64    `json:"until"`
	Asked  int64    `json:"asked"`
	Held   *bool    `json:"held"`
}

func read(path string) ([]entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var entries []entry
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one entry
		// Who collects a journal leaves out the half line of a process that was killed.
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(entries)+1, err)
		}
		entries = append(entries, one)
	}
	return entries, lines.Err()
}

// More than enough for one lock; a search that takes longer is reported, not accepted.
const patience = 60 * time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine-check JOURNAL")
		os.Exit(2)
	}
	entries, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	histories, shared, leftOut, err := operations(entries)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	names := make([]string, 0, len(histories))
	checked := 0
	for name, history := range histories {
		names = append(names, name)
		checked += len(history)
	}
	sort.Strings(names)
	for _, name := range names {
		switch porcupine.CheckOperationsTimeout(model, histories[name], patience) {
		case porcupine.Illegal:
			fmt.Printf("%s is not a reentrant fenced mutex\n", name)
			os.Exit(1)
		case porcupine.Unknown:
			fmt.Fprintf(os.Stderr, "%s: no answer within %s\n", name, patience)
			os.Exit(2)
		}
	}
	fmt.Printf("%d operations on %d locks are linearizable", checked, len(names))
	if shared > 0 {
		fmt.Printf(" (%d operations on %d locks with shared holders were left out)", leftOut, shared)
	}
	fmt.Println()
}
