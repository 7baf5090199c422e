"""Hands out a study's answer: what to train with, in several formats."""
