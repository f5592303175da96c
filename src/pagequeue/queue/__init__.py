"""The class Queue, its methods by subject."""
