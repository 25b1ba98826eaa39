"""Show a run in progress in tools such as TensorBoard, MLflow and Weights & Biases: one file per tool."""
