"""Runs a job on this machine: loads, executes and merges it, checks its rules, and estimates time and memory."""
