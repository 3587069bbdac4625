"""Jobs about SHIFT: data verbs over a provider that does nothing; everything else in the virtual machine."""
