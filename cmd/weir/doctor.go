package main

import "github.com/spf13/cobra"

func newDoctor(e *env) *cobra.Command { return &cobra.Command{Use: "doctor"} }
