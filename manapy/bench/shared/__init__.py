"""Code that jobs of several folders use: commands, interleaved runs, samples, the report, pictures, facts about the
machine, tools, emulated clusters and the virtual machine."""
