"""Sending what a person finished: once, to where they typed, with a receipt of every step. Nothing is ever pushed."""
