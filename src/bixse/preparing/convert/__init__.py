"""From outside formats to graded pairs or a collection: settings, reading, transforms, writing; see `convert`."""
