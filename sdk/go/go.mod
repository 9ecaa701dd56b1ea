module leno

go 1.21
