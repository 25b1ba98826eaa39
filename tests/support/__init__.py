"""What tests are built with: settings, fakes at the edges, and programs to start."""
