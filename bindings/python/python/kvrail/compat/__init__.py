"""Engines that look like others', for programs that were written for them."""
