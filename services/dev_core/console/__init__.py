"""The console: pages for people, served by the development core, with no build step and nothing from outside."""
