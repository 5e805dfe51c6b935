package main

import "fmt"

// Messages are bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	bytes, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("not bytes: %T", v)
	}
	return *bytes, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	bytes, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("not bytes: %T", v)
	}
	*bytes = append([]byte(nil), data...)
	return nil
}

func (rawCodec) Name() string {
	return "lab"
}
