"""What jobs of several rooms use: commands, interleaved runs, samples, the report, pictures, facts about the machine,
tools, emulated clusters and the virtual machine."""
