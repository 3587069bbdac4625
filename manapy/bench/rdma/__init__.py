"""Jobs about SHIFT: data verbs over a provider that does nothing; all else in the virtual machine."""
