"""What a gateway inside a pod sandbox needs before it may dial core (pod-mode 3 and 4)."""
