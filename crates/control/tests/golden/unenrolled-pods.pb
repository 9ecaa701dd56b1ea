R&
$7d0c1f5e-1c0b-4f39-9d2b-0f6f3f1d2a10