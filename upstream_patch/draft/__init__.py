"""Drafts: files for a person to finish. Facts are filled in, prose is left as marked holes; nothing here sends."""
